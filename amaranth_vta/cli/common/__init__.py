"""What commands of several sections share: options, output files, errors, progress."""
