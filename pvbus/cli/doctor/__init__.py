"""`pvbus doctor`: whether a cluster and a bus are as the services need them, and what to do where not."""
