"""Building blocks for policies of flow-matching diffusion pipelines: families, windows of steps, and the policy itself.

It stands on torch, transformers and peft, and it knows no pipeline: a plugin describes one as a `Family`.
"""
