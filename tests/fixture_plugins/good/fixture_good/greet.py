"""A command."""

print("imported")


def greet(name: str, times: int = 1) -> None:
    """Greet someone, several times if asked."""
    print(" ".join([f"Hello {name}."] * times))
