"""A run in phases: several trainers over one model take turns."""
