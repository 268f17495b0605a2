"""`sessiond top`: a server's memory and turns, live in the terminal."""
