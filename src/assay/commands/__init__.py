"""The commands that are not a method's own."""
