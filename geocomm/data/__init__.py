"""The data plane: catalogs of tokenized data sets, and which site reads which of their sequences.

The driver and users' loops read batches from here, by `SiteDataset`; an elastic run's leader deals by `deals.py`. Begin
with `catalog.py`: what a data set is. `corpus/` is the ground: text, tokens and packed sequences.
"""
