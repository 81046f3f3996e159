"""The decisions of the webhook sink: what a request has, what an answer means, when an event is given up.

`message` makes requests of events, `answers` judges the receiver's answers, `trials` counts failures.
"""
