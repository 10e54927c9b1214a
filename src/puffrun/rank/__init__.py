"""What puffrun puts into a rank before the program: its birth, recorder and server."""
