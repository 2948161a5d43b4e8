"""What a run is: the schema, its composition, its checks and its identity."""
