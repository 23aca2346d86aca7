"""The report of one run: one page of charts, with the numbers behind them, as HTML without network use or as PNG.

subject     which run, the one it is compared with, and all that is known of them
measures    single numbers of a run, and of two beside each other
timeline    how a run stood over time, as series for charts
pictures    the charts, each with the table of its numbers
page        the HTML page
writing     the file
"""

from bulkinfer.report.writing import check_ending, write_report

__all__ = ["check_ending", "write_report"]
