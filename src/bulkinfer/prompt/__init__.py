"""The prompt: Jinja templates and a document -> the messages of a conversation, or the texts to embed or score.

    text --syntax: allowed parts only, costs put in--> code --template--> messages, or a fault of the document

A template comes from whoever wrote the job file and a document from anywhere. Neither can make a rendering run for
ever, fill the memory or reach Python's objects; a document that its template does not fit is a fault of it alone.
"""

from bulkinfer.prompt.template import DocumentFault, Marked, PromptTemplate

__all__ = ["DocumentFault", "Marked", "PromptTemplate"]
