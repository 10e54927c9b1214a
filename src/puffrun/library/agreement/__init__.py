"""The ranks meet and get one verdict: agree, barrier, run_once, and who is gone."""
