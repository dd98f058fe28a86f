"""A command."""

print("imported")


def greet(name: str, times: int = 1) -> None:
    """Greet somebody, several times if asked."""
    print(" ".join([f"Hello {name}."] * times))
