"""How the toy world was made: its clips, its measure, and the scripts that trained its checkpoint."""
