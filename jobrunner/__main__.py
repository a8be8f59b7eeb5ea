"""The way in from the shell: `jobrunner` and `python -m jobrunner`."""

from jobrunner.cli.main import main

if __name__ == "__main__":
    main()
