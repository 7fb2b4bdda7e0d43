"""Lightning, and the trainers and wrappers of Hugging Face's libraries."""
