"""What algorithms learn from: one type for each sort of credit, whose first axis is the sample."""
