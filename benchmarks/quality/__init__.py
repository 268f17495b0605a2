"""What each precision costs in quality, against float32, beside llama.cpp on the same file."""
