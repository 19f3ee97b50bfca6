"""What is measured: each module has one question and one function that answers it."""
