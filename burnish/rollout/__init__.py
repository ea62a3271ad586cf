"""Where scored samples come from. The loop asks a source for one batch per policy update and knows no more."""
