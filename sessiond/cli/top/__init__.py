"""`sessiond top`: shows a server's memory and turns live in the terminal."""
