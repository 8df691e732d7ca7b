"""What a job waits for, and why: facts are gathered twice (`observations`), and a diagnosis made of them."""
