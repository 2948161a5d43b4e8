if [ ! -f nickel ]; then
  echo missing file nickel
  exit 1
fi
echo ginger > laurel.txt
echo done
