"""The board: a local page about the runs in a folder, which follows those that run."""
