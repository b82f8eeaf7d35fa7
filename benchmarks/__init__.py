"""What is promised about speed, measured side by side with what people use today."""
