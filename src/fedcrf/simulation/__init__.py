"""The federated simulation: the clients' data, their local training, and the rounds."""
