"""Speed, measured side by side: jobrunner, its peers and bare yardsticks in one run. Start with README.md."""
