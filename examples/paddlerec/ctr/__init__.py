"""Click prediction, as a workspace of PaddleRec: `model` and `reader`, and `__main__`, which every process runs."""
