"""What grpokit itself brings, through the same hooks as any plugin."""
