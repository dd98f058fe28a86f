"""What a CPU computes in another way than a GPU: matrix products, and causal attention."""
