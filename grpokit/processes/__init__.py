"""Several processes that train one policy: how they join, what they tell each other, and weights that they share."""
