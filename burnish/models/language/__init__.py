"""Language models, with or without eyes: any class of transformers."""
