"""The report of a run: one page, live on the board or in one file, and one text; plain data behind both."""
