"""The webhook sink: reads the public events of a bus and posts them to a receiver.

`receiver` sends one request, `pace` limits them, `lease` holds the events of a partition, `bootstrap` reads
the table of latest events, `worker` puts them together.
"""
