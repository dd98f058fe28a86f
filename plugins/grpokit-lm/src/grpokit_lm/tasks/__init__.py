"""The jobs of the presets: their prompts, and the rewards that judge the answers. Nothing here imports torch."""
