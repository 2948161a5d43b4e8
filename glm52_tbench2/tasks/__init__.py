"""Task suites, task sets, the split into trained and held out, and the suite `mini`."""
