"""`python -m bulkinfer`, for where the console script is not on the path."""

from bulkinfer.cli import main

if __name__ == "__main__":
    main()
