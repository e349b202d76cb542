"""The data plane: catalogs of tokenized data sets, and who reads which sequence of them."""
