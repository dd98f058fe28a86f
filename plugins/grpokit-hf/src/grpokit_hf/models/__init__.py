"""A model of transformers: where it lies, how it is loaded, adapted, held frozen, recomputed and saved."""
