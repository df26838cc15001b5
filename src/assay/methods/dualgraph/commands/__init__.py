"""The verbs of `assay dualgraph`, a module for those that belong together."""
