"""What policies of Hugging Face models share: adapters, references, weights on disk, and where a model lies.

Its modules import transformers and peft, so nothing else in the core imports them. A plugin that does depends on both.
"""
