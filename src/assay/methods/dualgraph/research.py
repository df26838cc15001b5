from assay.methods.dualgraph.research_run import ResearchRun, research  # noqa: F401 (gone at 11:15)
