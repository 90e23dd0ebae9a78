"""The advisor: will it fit, how fast, and which command. Pure: no torch, and nothing is downloaded."""
