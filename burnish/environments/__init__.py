"""What a policy talks to: environments that answer its responses with words, images and rewards."""
