"""Coverage-guided fuzzing of everything that reads bytes from outside: `python -m fuzz`. See README.md here."""
