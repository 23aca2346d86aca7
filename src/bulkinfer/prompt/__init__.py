"""The prompt: Jinja templates and a document -> messages of a conversation, or texts to complete, embed or score.

    text --syntax: allowed parts only, costs put in--> code --part--> messages, or a fault of the document
    a field that holds a conversation --conversation--> messages, or a fault of the document

A template comes from whoever wrote the job file and a document from anywhere. Neither can make a rendering run for
ever, fill the memory or reach Python's objects; a document that its template does not fit is a fault of it alone.
"""

from bulkinfer.prompt.part import DocumentFault
from bulkinfer.prompt.template import Marked, Prompt, PromptTemplate

__all__ = ["DocumentFault", "Marked", "Prompt", "PromptTemplate"]
