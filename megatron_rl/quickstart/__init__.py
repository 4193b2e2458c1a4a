"""The quickstart's task: data, tokenizer and starting policy, all made on the spot."""
