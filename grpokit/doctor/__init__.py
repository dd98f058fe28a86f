"""Looks at an environment and says what is wrong with it: `environment.examine`. No network is used."""
