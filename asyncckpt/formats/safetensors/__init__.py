"""safetensors: one file, and Hugging Face's sets of them."""
