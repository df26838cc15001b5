"""What a run leaves for readers: its page, the scoreboard over all runs, and both as Markdown.

It reads run folders (`assay.study.RunFolder`) and knows of no method.
"""

from assay.report.everything import write_everything
from assay.report.figures import render_figures
from assay.report.index import write_index
from assay.report.markdown import write_markdown, write_results
from assay.report.page import write_report

__all__ = [
    "render_figures",
    "write_everything",
    "write_index",
    "write_markdown",
    "write_report",
    "write_results",
]
